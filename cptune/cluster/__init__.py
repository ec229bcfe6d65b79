"""Ray: the nodes, one warm actor per device, and trials as gangs that live or die together."""
