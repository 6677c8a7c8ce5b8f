"""How a model writes an answer that is more than text: its reasoning, and calls of the client's tools.

Every family of models has a format of its own. `derive` finds it by rendering a conversation with known
values through the model's chat template. `parser` splits the raw text of an answer by that format while
it is generated, `grammar` says what a call has to look like, and `history` gives earlier calls to the
template in the form that it reads.
"""
