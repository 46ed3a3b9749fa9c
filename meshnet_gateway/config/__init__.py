"""What an Operator tells a Gateway: read from a file and the environment, checked as a whole."""
