"""The engine as seen from the UI: started, reached, asked, and stopped."""
