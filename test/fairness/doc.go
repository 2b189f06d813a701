// Package fairness measures whether one loud runtime can slow down quiet ones.
//
// Three processes take part, so that what is measured is the listener and not who generates the load: the listener, 200 quiet runtimes
// (the test itself), and one flooding runtime. The flooding one runs at the lowest priority (nice 19): in reality it has a machine of its own,
// while here its own TLS and HTTP work would take the processor from the listener and from the quiet ones' clients, and be measured as
// their delay. It gets whatever processor time is left, which is most of it.
//
// It also measures what strangers who begin handshakes cost those who use a listener, and an API server that calls the webhook of a real agent.
package fairness
