"""What is shown to people: HTML that is escaped, charts as SVG, as characters and as files. It knows no models."""
