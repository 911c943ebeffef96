"""What proves samekey, and what its users may prove their own code with. Nothing else imports it."""
