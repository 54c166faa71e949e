"""What is going on in a running Fairlane? `fairlane top`: lanes, pools and backends, live in the terminal."""
