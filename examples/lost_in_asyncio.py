"""In asyncio, a block whose hold is lost is cancelled, and the error names the lock."""

import asyncio

import lockfast


async def main() -> None:
    client = lockfast.aio.connect("memory://", lease=1)
    try:
        async with client.lock("orders:42") as hold:
            await client.break_hold("orders:42", hold.fence)  # as an operator would
            await asyncio.sleep(60)  # cancelled within a third of the lease
    except lockfast.HoldLost as error:
        print(error)
    else:
        raise AssertionError("the body was not cancelled")


asyncio.run(main())
