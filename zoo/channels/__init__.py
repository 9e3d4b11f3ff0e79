"""Channel mixers (feed-forward networks), one file each; importing this package registers them all."""
