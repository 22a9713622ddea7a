"""TLS from the start: ssl= as in asyncio, over whatever path the connection takes."""

import asyncio
import ssl
import subprocess
import tempfile

import smcfast


def certificate(folder: str) -> tuple[str, str]:
    """A certificate that nobody else trusts, and its key; a service has its own."""
    files = f"{folder}/certificate.pem", f"{folder}/key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    writer.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = certificate(folder)
        of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        of_server.load_cert_chain(*files)
        of_client = ssl.create_default_context(cafile=files[0])
    server = await smcfast.start_smc_server(shout, "127.0.0.1", 0, ssl=of_server)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await smcfast.open_smc_connection(host, port, ssl=of_client)
        writer.write(b"hello\n")
        print(await reader.readline())
        print(writer.get_extra_info("smc").path, writer.get_extra_info("ssl_object").version())
        writer.close()
        await writer.wait_closed()


asyncio.run(main())
