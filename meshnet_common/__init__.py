"""What every role shares: identifiers, protocol, the OpenAI schema and edge helpers."""
