"""From a checkpoint's config.json and safetensors headers to a Model Preset; never a weight."""
