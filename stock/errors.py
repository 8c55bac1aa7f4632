"""The one error that leaves the engine: a code of docs/protocol.md and a message."""


class EngineError(Exception):
    """A request, an option, a model or a device that the engine cannot serve.

    `code` is one of the closed list in docs/protocol.md.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
