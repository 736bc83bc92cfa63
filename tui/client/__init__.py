"""The engine as seen from the UI: started, connected to, queried and stopped."""
