"""What a candidate will cost before it runs: memory, traffic and time, by pure arithmetic."""
