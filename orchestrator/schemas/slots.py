"""Slots of a running llama-server, without anything that a client has sent."""

from pydantic import Field

from orchestrator.schemas.base import View


class NextToken(View):
    """How far the generation of a slot is."""

    n_decoded: int = Field(0, description="Tokens generated for the present or last request.", examples=[17])
    n_remain: int = Field(0, description="Tokens that may still come; -1 for no bound.", examples=[111])


class SlotView(View):
    """One slot, in llama-server's words. What it does not say before its first request is null."""

    id: int = Field(description="Number of the slot, from 0.", examples=[0])
    n_ctx: int = Field(description="Its share of the context, tokens.", examples=[4096])
    is_processing: bool = Field(description="Whether a request runs on it.", examples=[True])
    speculative: bool = Field(False, description="Whether it can draft.", examples=[True])
    id_task: int | None = Field(None, description="llama-server's number of its present or last task.", examples=[42])
    n_prompt_tokens: int | None = Field(None, description="Tokens it holds.", examples=[128])
    n_prompt_tokens_processed: int | None = Field(
        None, description="Tokens of the prompt that were evaluated for it.", examples=[28]
    )
    n_prompt_tokens_cache: int | None = Field(
        None, description="Tokens of the prompt that it held already.", examples=[100]
    )
    next_token: tuple[NextToken, ...] = Field((), description="How far its generation is; one entry after a request.")


class SlotList(View):
    """The slots of the server of a model."""

    model: str = Field(description="Name of the model.", examples=["smollm2-135m"])
    slots: tuple[SlotView, ...] = Field(description="By number.")
