package coretest

import "github.com/google/go-cmp/cmp"

func (s *forwarderSuite) testUnchanged() {
	batch := s.batch(sampleEvents(0, 8)...)
	batch.Heartbeat = sampleHeartbeat()
	before := clone(batch)

	// Not send, which makes batches of its own. A cut batch is changed as well.
	_ = s.forward(managerA, batch)
	if diff := cmp.Diff(before, batch); diff != "" {
		s.t.Errorf("Forward changes the batch (-before +after):\n%s", diff)
	}
}

// testNotKept writes into a batch after Forward returned. The race detector finds other readers.
func (s *forwarderSuite) testNotKept() {
	first := s.batch(sampleEvents(0, 3)...)
	_ = s.forward(managerA, first)

	poison := sampleEvent(0)
	poison.Watched.Name = "written-after-return"

	for i := range first.Events {
		first.Events[i].WatchEvent = poison
	}

	s.mustSend(managerA, s.batch(sampleEvents(3, 3)...))

	for _, got := range s.farEnd.Acknowledged(managerA) {
		if got.Watched.Name == poison.Watched.Name {
			s.t.Fatal("Forward keeps the batch after it returned: an event that was written into it later arrived")
		}
	}

	s.delivered(managerA, sampleEvents(3, 3)...)
}
