import crypto from 'crypto';

// The SHA-256 of the client certificate in DER, in hex: Envoy's Hash. Empty without a certificate.
function hash(r) {
    const pem = r.variables.ssl_client_raw_cert;
    if (!pem) {
        return '';
    }

    const base64 = pem.replace(/-----[^-]*-----/g, '').replace(/\s/g, '');

    return crypto.createHash('sha256').update(Buffer.from(base64, 'base64')).digest('hex');
}

export default { hash };
