"""What a run says to people: numbers first, then the words and tables made of them."""
