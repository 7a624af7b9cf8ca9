"""What the fits share: stacked members, their objective, learned variances, results and figures."""
