"""How lockfast waits: in threads, and in asyncio. Knows no store."""
