package child

const fixtureVariable = "CHILD_FIXTURE"

func runFixture(string) int { return 0 }
