"""Published measurements beside the planner's predictions: tables, judgement, report, fit."""
