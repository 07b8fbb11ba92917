"""The models that the paper compares SNM with. All are `LanguageModel`s; backoff models use the counts of SNM."""
