"""The demo: a Tracker and three Workers on this machine, and one chat with a real model."""
