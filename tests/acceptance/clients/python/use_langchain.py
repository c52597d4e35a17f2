"""Run by LangChain's own interpreter, against the gateway at $BASE_URL."""

import os

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

where = {"base_url": os.environ["BASE_URL"], "api_key": "any"}
chat = ChatOpenAI(model="m", max_tokens=5, **where)
assert chat.invoke("hello").content
assert "".join(piece.content for piece in chat.stream("hello"))
assert len(chat.batch(["a", "b", "c", "d"], config={"max_concurrency": 4})) == 4
vectors = OpenAIEmbeddings(model="m", check_embedding_ctx_length=False, **where).embed_documents(["a", "b"])
assert len(vectors) == 2
print("ok langchain")
