"""What this Gateway serves: models, their Endpoints as they stand, and who may go now."""
