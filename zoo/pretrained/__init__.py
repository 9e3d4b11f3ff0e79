"""Published models: folders of Hugging Face's layout, read into models of this project and written from them.

links.py      tensors of ours that hold the numbers of published ones
families.py   which families there are: their configurations and the names of their tensors, in both directions
writing.py    a model as such a folder: of a family where one computes the same, else of zoo.hf
conversion.py a model that goes on as another kind, gated sparse attention in several streams, with the same logits
folder.py     a folder: its configuration, its shards of weights, read tensor by tensor; its tokenizer
"""

from zoo.pretrained.conversion import convert, converted
from zoo.pretrained.families import FAMILIES
from zoo.pretrained.folder import Published, from_pretrained, read_tokenizer

__all__ = ["FAMILIES", "Published", "convert", "converted", "from_pretrained", "read_tokenizer"]
