"""What people and programs meet. Only this package prints."""
