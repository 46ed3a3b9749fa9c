"""Fuzzes one reader until libFuzzer has had enough: `NAME CORPUS` and libFuzzer's flags."""

import sys

import atheris  # type: ignore[import-untyped]

# What is imported here tells the fuzzer which ways its bytes took.
with atheris.instrument_imports(include=["meshnet_common", "meshnet_worker", "jwt"]):
    from bench.fuzz_targets import TARGETS

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
