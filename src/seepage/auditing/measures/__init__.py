"""From a clean table to findings: what is measured, judged and advised."""
