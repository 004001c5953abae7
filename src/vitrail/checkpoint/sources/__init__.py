"""Where weights come from by name (the bundled model, fetched models, the Hugging Face Hub), and how they get there."""
