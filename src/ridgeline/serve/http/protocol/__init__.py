"""The API's requests (pydantic: strict, unknown fields forbidden) and replies (msgspec).

Field names and meanings are OpenAI's, extras are vLLM's. A field that OpenAI has and we do not
serve stands here with the type None: null is taken, anything else refused. No engine enters here.
"""
