"""Between messages, token ids and text; runs in the daemon's process, so torch stays outside."""
