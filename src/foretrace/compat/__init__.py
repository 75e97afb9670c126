"""Other simulators' own arithmetic, so that their numbers can be reproduced and compared with ours."""
