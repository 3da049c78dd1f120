"""What a person may write in a federation file or a site's file, and how they are read."""
