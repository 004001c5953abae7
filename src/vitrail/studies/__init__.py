"""Studies: claims about trained models, measured on frozen weights with seeds and error bars."""
