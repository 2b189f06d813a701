package simulation

import "testing"

// A seed always draws the same plan, and the seeds of make simulate have each ingredient several times. An ingredient
// that no seed draws would find nothing.
func TestSeedsHaveEachIngredient(t *testing.T) {
	const seeds, least = 1500, 5

	drawn := make(map[string]int)
	for seed := range uint64(seeds) {
		plan := draw(seed)
		if text := plan.String(); text != draw(seed).String() {
			t.Fatalf("seed %d draws two plans:\n%s", seed, text)
		}
		for _, ingredient := range ingredientsOf(plan) {
			drawn[ingredient]++
		}
	}

	for _, ingredient := range []string{
		string(WatchRemoved), string(EtcdRestored), string(ManagerAway), string(MessagesMalformed), string(CallersRotated), string(CallbackPanics),
		string(WebhooksChanged),
		"a second restart beside a loud runtime", "a liar", "few places", "a fault again",
		"a deletion while a handler hangs", "a panic in a handler for one object",
		"a panic in the verifier for one object", "a panic in a handler for a runtime",
		"a panic in the verifier for a runtime",
	} {
		if drawn[ingredient] < least {
			t.Errorf("%d of %d seeds have %q, want at least %d", drawn[ingredient], seeds, ingredient, least)
		}
	}
	t.Logf("of %d seeds: %v", seeds, drawn)
}

func ingredientsOf(p *Plan) (all []string) {
	kinds := make(map[FaultKind]int)
	for i := range p.Faults {
		kinds[p.Faults[i].Kind]++
	}
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Kind == EventPanics || f.Kind == CallbackPanics {
			all = append(all, "a panic "+placeOf(f))
		}
	}
	for kind := range kinds {
		all = append(all, string(kind))
	}

	lies := false
	for i := range p.Runtimes {
		lies = lies || p.Runtimes[i].Lies != 0
	}
	for ingredient, has := range map[string]bool{
		"a second restart beside a loud runtime": p.Loud && kinds[AgentKilled] >= len(p.Runtimes),
		"a liar":                                 lies,
		"few places":                             p.Places > 0,
		"a fault again":                          len(kinds) == 1 && len(p.Faults) == 2,
		"a deletion while a handler hangs":       kinds[RuntimeDeleted] > 0 && kinds[MapHangs] > 0,
	} {
		if has {
			all = append(all, ingredient)
		}
	}
	return all
}

// placeOf returns where a callback panics, and for what.
func placeOf(f *Fault) string {
	place := "in the map function"
	switch {
	case f.panicsInVerifier():
		place = "in the verifier"
	case f.Value == inHandler:
		place = "in a handler"
	}
	if f.Kind == EventPanics {
		return place + " for one object"
	}
	return place + " for a runtime"
}
