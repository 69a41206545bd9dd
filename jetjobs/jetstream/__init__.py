"""All that touches NATS. The only folder that imports it."""
