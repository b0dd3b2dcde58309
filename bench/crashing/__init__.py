"""The parts of the crash run: who sends, who receives, what is broken meanwhile, and the judge."""
