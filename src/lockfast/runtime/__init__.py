"""The runtimes that wait: threads and asyncio. They know no store."""
