"""An account has one writer on this machine: a session locks its account's ID in the user's state folder.

Sessions on other machines are seen by their orders and fills. The simulated broker needs no lock, because its account
is in the session's folder.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.live.brokers.broker import Broker
from ml_pipeline.runtime.files import alone, open_regular
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.runtime.user_key import NoKey, state_folder

_MOST_BYTES = 10_000


@contextlib.contextmanager
def claim_account(broker: Broker, folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the broker's account, if it has an `account_id`, for the session in this folder.

    The system releases it if this process dies. say: called with a sentence if no lock can be stored.
    Raises UserError, which names the other session, if one trades the account.
    """
    account = getattr(broker, "account_id", None)
    if account is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            path = _lock_path(broker.name, str(account))
            stack.enter_context(alone(path, timeout_s=0.0))
            with contextlib.suppress(OSError):  # a full disk
                path.write_text(json.dumps({**this_process()._asdict(), "folder": str(folder)}), encoding="utf-8")
        except TimeoutError:
            raise UserError(
                f"The account {account} at {broker.name} is traded by {_holder(path)}; stop that session, or use "
                "another account."
            ) from None
        except (NoKey, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            say(
                f"The account {account} cannot be locked ({why}): make sure that no other session trades it, or set "
                "XDG_STATE_HOME to a writable folder."
            )
        yield


def _lock_path(broker: str, account: str) -> Path:
    """The lock file of an account; its folder is created."""
    folder = state_folder() / "accounts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.blake2b(json.dumps([broker, account]).encode(), digest_size=12).hexdigest()
    return folder / f"{digest}.lock"


def _holder(path: Path) -> str:
    """The session that holds a lock, in words."""
    try:
        with open_regular(path) as file:
            told = json.loads(file.read(_MOST_BYTES))
        session, process = shown_path(Path(str(told["folder"]))), f"{told['pid']} on {told['host']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another session"
    return f"the session in {in_one_line(session)} (process {in_one_line(process, 60)})"
