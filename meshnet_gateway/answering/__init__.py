"""One request at a time: tried, held, federated, failed over, until its client has an answer."""
