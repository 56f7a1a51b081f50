"""Map-style datasets: from sample numbers to encoded bytes."""
