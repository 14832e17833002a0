"""Update rules at constant rates, of the systems that are not problems yet."""
