"""Notify somebody when a run of the flows fails: a webhook and an automation in Prefect; `wmt notify`."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import cast
from urllib.parse import urlsplit
from uuid import UUID

from prefect.automations import Automation
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture

from nmt.config import InputError

NAME = "wmt-failures"
"""Of the block and of the automation."""
STATES = ["FAILED", "CRASHED"]
"""Types of the states in which a flow run ends badly; a cancelled run is the user's wish."""
SUBJECT = "{{ flow_run.name }}: {{ flow_run.state.name }}"
BODY = "{{ flow_run.state.message }}\n{{ flow_run|ui_url }}"


def notify(url: str) -> None:
    """Have Prefect post `{"text": ...}` to `url` when a run fails, in place of an earlier address.

    Raises InputError for an address that is none.
    """
    address = urlsplit(url)
    if address.scheme not in {"http", "https"} or not address.hostname:
        raise InputError(f"{url} is no address of a webhook: it must begin with http:// or https:// and name a host")
    content = {"text": "{{subject}}\n{{body}}"}
    webhook = CustomWebhookNotificationBlock(name=NAME, url=url, json_data=content, headers=None, cookies=None)
    # The declared return types include the coroutines that asynchronous callers get.
    block = cast(UUID, webhook.save(NAME, overwrite=True))
    with suppress(ValueError):  # There is none yet.
        cast(Automation, Automation.read(name=NAME)).delete()
    Automation(
        name=NAME,
        description="Posts the name, state and message of a run that has failed.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": "prefect.flow-run.*", "prefect.state-type": STATES},
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[SendNotification(block_document_id=block, subject=SUBJECT, body=BODY)],
    ).create()
