"""What tests share: real servers, a proxy, and ways to wait for facts."""
