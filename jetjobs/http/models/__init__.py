"""The models of requests and answers: one definition of the JSON that the API and `--json` have."""
