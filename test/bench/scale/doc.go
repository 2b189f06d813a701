// Package scale measures the control-plane side with thousands of runtimes: the time of one look at
// each, the memory of the operator, and the wait of a new runtime.
//
// The control plane is a real API server. One cheap process replaces the API servers of all
// runtimes. It answers each request after a latency, and its Deployments are ready at once. The
// operator is a process of its own, so that its memory can be measured.
//
//	go test ./test/bench/scale -run TestScale -v -timeout 2h -runtimes 10000 -dead 1000
package scale
