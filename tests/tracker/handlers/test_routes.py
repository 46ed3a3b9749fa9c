import base64
import sqlite3
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from meshnet_common.protocol.tickets import RouteTicket, ticket_key_id, verify_ticket
from meshnet_tracker.signing import Signer, fresh_key
from tests.common.builders import ticket, token_of
from tests.tracker.builders import NOW, shard
from tests.tracker.health import fake_worker, is_overdue, is_well
from tests.tracker.running import RunningTracker

URLS = {f"w{number}": f"http://127.0.0.1:{number}" for number in (1, 2, 3)}


async def published_key(tracker: RunningTracker, token: str) -> Ed25519PublicKey:
    (key,) = (await tracker.get("/v1/keys")).json["keys"]
    assert key["kid"] == ticket_key_id(token)
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))


async def ticket_of(tracker: RunningTracker, query: str = "") -> RouteTicket:
    answer = (await tracker.get(f"/v1/route/tiny{query}")).json
    key = await published_key(tracker, answer["ticket"])
    ticket = verify_ticket(answer["ticket"], key)
    assert [hop.worker_id for hop in ticket.hops] == [h["worker_id"] for h in answer["hops"]]
    return ticket


async def test_a_route_is_signed_with_the_published_key(tracker: RunningTracker) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 3))
    await tracker.serve("w2", URLS["w2"], shard(3, 6))
    ticket = await ticket_of(tracker)
    assert [(hop.url, hop.start, hop.end) for hop in ticket.hops] == [
        (URLS["w1"], 0, 3),
        (URLS["w2"], 3, 6),
    ]
    assert (ticket.model, ticket.quantization, ticket.layer_count) == ("tiny", "bfloat16", 6)
    assert ticket.variant_digest == "digest-of-bfloat16"
    assert ticket.expires_at == NOW + 120
    assert len(ticket.session_id) == 32
    assert 0 <= ticket.seed < 2**63


async def test_every_route_is_a_session_of_its_own_in_order_of_admission(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 6))
    first, second = await ticket_of(tracker), await ticket_of(tracker)
    assert first.session_id != second.session_id
    assert first.admission_seq < second.admission_seq


async def test_excluded_workers_are_avoided(tracker: RunningTracker) -> None:
    for name, url in URLS.items():
        await tracker.serve(name, url, shard(0, 6))
    for query in ("?exclude=w1,w2", "?exclude=w1&exclude=w2"):
        assert [hop.worker_id for hop in (await ticket_of(tracker, query)).hops] == ["w3"]


async def test_a_head_worker_can_ask_for_a_route_that_begins_with_itself(
    tracker: RunningTracker,
) -> None:
    for name, url in URLS.items():
        await tracker.serve(name, url, shard(0, 6))
    for name in URLS:
        assert (await ticket_of(tracker, f"?head={name}")).hops[0].worker_id == name


async def test_without_coverage_the_missing_layers_are_named(tracker: RunningTracker) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 2))
    await tracker.serve("w2", URLS["w2"], shard(5, 6))
    reply = await tracker.get("/v1/route/tiny")
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
    assert "of its layers 0-5, 2-4 have no ready worker" in reply.error["message"]
    assert reply.headers["Retry-After"] == "5"


async def renewed(tracker: RunningTracker, token: str, *avoid: str) -> RouteTicket:
    answer = (await tracker.post("/v1/route/renew", {"ticket": token, "avoid": avoid})).json
    return verify_ticket(answer["ticket"], await published_key(tracker, answer["ticket"]))


async def test_a_session_goes_on_one_incarnation_later_with_all_that_is_its_own(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 3))
    await tracker.serve("w2", URLS["w2"], shard(3, 6))
    token = (await tracker.get("/v1/route/tiny")).json["ticket"]
    old = verify_ticket(token, await published_key(tracker, token))
    tracker.clock.advance(1800)
    for name, run in (("w1", (0, 3)), ("w2", (3, 6))):
        await tracker.serve(name, URLS[name], shard(*run))
    fresh = await renewed(tracker, token)
    assert fresh.expires_at == old.expires_at + 1800
    assert fresh.incarnation == old.incarnation + 1
    kept = ("session_id", "admission_seq", "admitted_at", "seed", "variant_digest", "hops")
    assert [getattr(fresh, name) for name in kept] == [getattr(old, name) for name in kept]


async def test_who_was_not_renewed_for_too_long_is_told_what_to_do(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 6))
    token = (await tracker.get("/v1/route/tiny")).json["ticket"]
    tracker.clock.advance(tracker.services.settings.renewal_seconds + 1)
    reply = await tracker.post("/v1/route/renew", {"ticket": token})
    assert (reply.status, reply.error["code"]) == (403, "invalid_ticket")
    assert "send the request again" in reply.error["message"]


@pytest.mark.parametrize("table", ["incarnations", "counters"])
async def test_no_database_is_told_apart_from_no_route(
    tracker: RunningTracker, tmp_path: Path, table: str
) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 6))
    token = (await tracker.get("/v1/route/tiny")).json["ticket"]
    with sqlite3.connect(tmp_path / "tracker.sqlite3") as raw:
        raw.execute(f"ALTER TABLE {table} RENAME TO away")
    raw.close()
    tracker.services.view.forget()
    reply = await tracker.post("/v1/route/renew", {"ticket": token})
    assert (reply.status, reply.error["code"]) == (503, "database_unavailable")
    assert reply.headers["Retry-After"] == "5"


async def test_a_renewed_route_keeps_its_head_and_avoids_others_where_it_can(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 3))
    for name in ("w2", "w3"):
        await tracker.serve(name, URLS[name], shard(3, 6))
    token = (await tracker.get("/v1/route/tiny")).json["ticket"]
    for avoid, tails in ((("w2",), {"w3"}), (("w3", "w1"), {"w2"}), (("w2", "w3"), {"w2", "w3"})):
        head, tail = (await renewed(tracker, token, *avoid)).hops
        assert head.worker_id == "w1"
        assert tail.worker_id in tails


async def test_a_strangers_ticket_renews_nothing(tracker: RunningTracker) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 6))
    for token in ("junk", token_of(ticket())):
        assert (await tracker.post("/v1/route/renew", {"ticket": token})).status == 403


async def test_a_session_whose_layers_are_gone_has_to_wait(tracker: RunningTracker) -> None:
    worker = await tracker.serve("w1", URLS["w1"], shard(0, 6))
    token = (await tracker.get("/v1/route/tiny")).json["ticket"]
    await worker.leave()
    reply = await tracker.post("/v1/route/renew", {"ticket": token})
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")


async def test_the_key_stays_the_same_for_all_trackers_of_a_database(
    tracker: RunningTracker,
) -> None:
    again = await Signer.of(tracker.store, tracker.clock, 3600)
    assert (await tracker.get("/v1/keys")).json == again.key_set()


async def test_a_reported_worker_that_is_gone_is_lost_and_its_layers_are_covered_anew(
    tracker: RunningTracker,
) -> None:
    async with fake_worker(is_overdue) as gone, fake_worker(is_well) as well:
        await tracker.serve("head", well.url, shard(0, 2))
        await tracker.serve("middle", gone.url, shard(2, 4))
        await tracker.serve("tail", well.url, shard(4, 6))
        token = (await tracker.get("/v1/route/tiny")).json["ticket"]
        await tracker.serve("spare", well.url, shard(2, 6))
        faults = [{"worker_id": "middle", "code": "peer_lost"}]
        reply = await tracker.post("/v1/route/renew", {"ticket": token, "faults": faults})
    assert [(hop["worker_id"], hop["start"], hop["end"]) for hop in reply.json["hops"]] == [
        ("head", 0, 2),
        ("spare", 2, 4),
        ("tail", 4, 6),
    ]
    states = {each["worker_id"]: each["state"] for each in await workers_of(tracker)}
    assert states == {"head": "live", "middle": "lost", "spare": "live", "tail": "live"}
    # One that answers is enough to know that the Tracker is not cut off itself.
    assert (gone.asked, well.asked) == (1, 1)


async def workers_of(tracker: RunningTracker) -> list[dict[str, object]]:
    workers: list[dict[str, object]] = (await tracker.get("/v1/workers")).json["workers"]
    return workers


async def test_layers_that_are_lost_with_their_worker_are_named(tracker: RunningTracker) -> None:
    async with fake_worker(is_overdue) as gone:
        await tracker.serve("head", URLS["w1"], shard(0, 3))
        await tracker.serve("tail", gone.url, shard(3, 6))
        token = (await tracker.get("/v1/route/tiny")).json["ticket"]
        faults = [{"worker_id": "tail", "code": "peer_stalled"}]
        reply = await tracker.post("/v1/route/renew", {"ticket": token, "faults": faults})
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
    assert "of its layers 0-5, 3-5 have no ready worker" in reply.error["message"]


async def test_a_head_worker_that_was_replaced_renews_and_reports_nothing(
    tracker: RunningTracker,
) -> None:
    async with fake_worker(is_overdue) as gone:
        await tracker.serve("w1", URLS["w1"], shard(0, 3))
        await tracker.serve("w2", URLS["w2"], shard(0, 3))
        await tracker.serve("tail", gone.url, shard(3, 6))
        token = (await tracker.get("/v1/route/tiny?head=w1")).json["ticket"]
        old = await tracker.services.signer.verify(token)
        await tracker.services.admissions.move_head(old, frozenset())
        faults = [{"worker_id": "tail", "code": "peer_lost"}]
        reply = await tracker.post("/v1/route/renew", {"ticket": token, "faults": faults})
    assert (reply.status, reply.error["code"]) == (403, "invalid_ticket")
    assert "has another Head Worker now" in reply.error["message"]
    assert gone.asked == 0


async def test_keys_are_shown_also_while_the_database_is_away(
    tracker: RunningTracker, tmp_path: Path
) -> None:
    before = (await tracker.get("/v1/keys")).json
    with sqlite3.connect(tmp_path / "tracker.sqlite3") as raw:
        raw.execute("DROP TABLE signing_keys")
    raw.close()
    assert (await tracker.get("/v1/keys")).json == before


async def test_after_a_rotation_new_and_old_tickets_are_of_keys_that_are_shown(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", URLS["w1"], shard(0, 6))
    before = (await tracker.get("/v1/route/tiny")).json["ticket"]
    await tracker.store.add_signing_key(fresh_key(NOW))
    shown = {key["kid"] for key in (await tracker.get("/v1/keys")).json["keys"]}
    after = (await tracker.get("/v1/route/tiny")).json["ticket"]
    assert shown == {ticket_key_id(before), ticket_key_id(after)}
    assert len(shown) == 2
    reply = await tracker.post("/v1/route/renew", {"ticket": before})
    assert ticket_key_id(reply.json["ticket"]) == ticket_key_id(after)
